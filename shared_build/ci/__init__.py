"""What the workflows decide: which packages a change touches, and whether a tag may be released."""
