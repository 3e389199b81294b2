"""The C++ client beside Python's, Triton's own C++ client, and the floor of the path: programs that take turns."""
