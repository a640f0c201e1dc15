"""What operators write: from a located text to frozen values, and every sentence that says what is wrong with it.

In reading order: `model`, `enforcers`, `located`, `values`, `resource_name`, `list_size`, `fields`, `checks`, `reader`,
`text`, `nvidia_format`, `nvidia_flags`, `steps`.
"""
