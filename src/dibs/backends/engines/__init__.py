"""Docker and Podman, through their own APIs, and what the two share."""
