"""The tables as places to write to: Delta, Iceberg or Parquet, each batch once."""
