"""Results as an MCAP file of Foxglove's messages, with a layout that shows them."""
