"""The recipe that trains pico: text, teacher speech, codes, language model, post-net, figures.

Nothing here is imported at run time. Needs the `train` extra.
"""
