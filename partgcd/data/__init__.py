"""From any folder of images to a catalog and a store of decoded pixels."""
