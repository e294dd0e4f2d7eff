"""`legato bench`: what is measured, each a command of its own."""
