"""The commands of `kworker`; each file or folder has one verb, or a group of related verbs."""
