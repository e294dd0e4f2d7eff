"""The shipped core and the client's bookkeeping under random scenarios, a virtual clock and a fake device."""
