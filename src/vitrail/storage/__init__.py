"""Files on disk: atomic writes, private and temporary folders, hash chains, formats, files of strangers."""
