"""dibs: ask for accelerators once; get them, or be told exactly why not."""
