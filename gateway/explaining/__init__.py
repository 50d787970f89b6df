"""What would become of a request, told to people: by a command, and by a gateway that runs."""
