"""The commands that the catalogue brings: `stepfast diamonds …`."""
