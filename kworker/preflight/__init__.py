"""The checks before a start: does the configuration fit brokers, handlers and other copies?"""
