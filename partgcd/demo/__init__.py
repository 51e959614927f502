"""Sample images: a drawn field guide with known parts."""
