"""Where models to import come from: everything that `windlass models import SOURCE` takes.

    SOURCE -> model_source -> acquire -> a directory or one file on this disk -> import_model

`model_source` parses SOURCE. `acquire` brings it to this disk: `hub` fetches repositories through
`on_huggingface` and `on_modelscope`, which implement `repository`; `pip_package` finds or downloads a Python
package that carries weights; `download` copies a URL of any store and reports progress; `archive` unpacks
archives within bounds. `needed` chooses the files of a model among all files of a repository or archive: no
code, no pickles. `import_model` converts what was acquired and registers it. `packaged` is the table of
models with a short name, such as smollm2.

Start at `import_model`.
"""
