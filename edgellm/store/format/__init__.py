"""What the bytes of a snapshot file mean: header, layout, tiers, packing."""
