"""From a request and the devices that are there to a plan, or to all the reasons why not. Pure."""
