"""Random two-layer models that together use every part of the contract. Tests run on them."""
