"""What is there: sources of devices, and the inventory that joins them."""
