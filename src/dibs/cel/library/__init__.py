"""The libraries that an Environment can switch on, one module each. Importing this package loads none of them."""
