"""The pages in docs/ and the README, compared with the code that they describe."""
