"""Reports: are these posteriors right?"""
