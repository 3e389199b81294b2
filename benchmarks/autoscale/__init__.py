"""How a number of workers follows its load: rules beside each other in a simulation, and the scaler as it runs."""
