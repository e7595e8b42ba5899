"""The shared Spark job: lands results in tables. The only package that imports pyspark."""
