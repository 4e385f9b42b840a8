pytest_plugins = ["dibs.testing.plugin"]
