"""Marks in what is spoken: an optional stage after any detokenizer, with weights of its own.

`marked` puts a mark around a model, `stage` streams any mark, `spectra` is what a mark must be; the
marks themselves have a file each. docs/watermarks.md says why and how.
"""
