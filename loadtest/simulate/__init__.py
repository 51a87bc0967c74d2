"""The engine's own policy on a virtual clock, beside others, against a device profile.

No torch, no wire, no wall clock: `device` says what work costs, `clients` who comes and what they
hear, `policies` who is served, `virtual` moves the clock, `sweep` tries rates and seeds, `report`
shows what came out.
"""
