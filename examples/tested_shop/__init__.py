"""An application and its tests."""
