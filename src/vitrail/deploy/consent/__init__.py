"""The consent form: what a site or a party agrees to, in plain words."""
