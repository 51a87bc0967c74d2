"""Who may come in: keys, secrets, origins, limits, TLS. One guard stands before every route."""
