"""Writers: Perfetto JSON, Chakra; and traces cut or merged."""
