"""The HTTP gateway: an OpenAI-compatible API in front of the engines. It runs without torch.

The path of one request, in eight steps:

1. `edge` accepts the connection, gives the request its id and checks origin and key; the result is a `caller`
   and a trace (`observe`).
2. `app` lists the routes; those in `routes` compute, those in `admin` read and change the service's records.
3. `schemas` turn the JSON body into a checked model, or into an error that says what would be right.
4. `idempotency` returns the stored answer if the client repeats a request with the same Idempotency-Key.
5. `service` finds the endpoint of the model that the request names; `text` tokenises the prompt.
6. `limits` admit the request by its cost, or refuse it with the time after which to retry.
7. `fleet` sends it to a replica and returns a handle; if the replica fails, another one continues the answer.
8. `routes` detokenise the tokens (`text`) into an answer, whole or as a stream of events; `observe` records
   metrics, the access log and the trace.

`__main__` is the process. `bootstrap` builds the service from the command line. `control_client` forwards
requests about runs, models and plans to the control process. HTTP basics that other servers share are in
windlass.http. Start at `app`.
"""
