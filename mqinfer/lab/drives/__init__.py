"""What a synthetic drive is made of: the road and camera, the light, the things beside the road, and their drawing."""
