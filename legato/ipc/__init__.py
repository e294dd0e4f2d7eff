"""The boundary between the API process and the engine process."""
