"""The tables as sinks: Delta, Iceberg or Parquet, to which each batch is written once."""
