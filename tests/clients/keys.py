"""The key that every client of these tests sends; one of the servers asks for it."""

KEY = "a-key-of-these-tests-0123456789"
