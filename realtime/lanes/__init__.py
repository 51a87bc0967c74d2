"""One file per wire form. Lanes only translate: sessions do the work."""
