"""Networks on parameter servers: AdamW on the servers, gradients from the workers.

part.py is what a server holds, course.py what the first one decides, worker.py what a worker computes.
book.py keeps the ledger, requests.py takes what people ask, telling.py tells.
"""
