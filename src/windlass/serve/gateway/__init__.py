"""The HTTP gateway: an OpenAI-compatible API in front of the engines. It runs without torch.

The life of one request, in eight steps. It is known by five nouns: trace, caller, answers, cost, handle.

1. `edge` accepts the connection, begins the trace (`observe`) and finds the `caller` by its key.
2. `app` lists the routes; those in `routes` compute, those in `admin` read and change the service's records.
   `schemas` turn the JSON body into a checked model, or into an error that says what would be right.
3. `idempotency` returns the stored answer if the client repeats a request with the same Idempotency-Key.
4. `service` finds the endpoint of the model that the request names.
5. `routes` tokenise the prompt (`text`) and make the answers, with their requests for the engine.
6. `limits` compute the cost and admit the request, or refuse it with the time after which to retry. Nothing
   else does.
7. `fleet` sends the requests to a replica and returns a handle; if the replica fails, another one continues.
8. `routes` take tokens from the handle and write the answers, whole or as a stream of events; `observe`
   records the trace in the metrics and the access log.

`__main__` is the process. `bootstrap` builds the service from the command line. `control_client` forwards
requests about runs, models and plans to the control process. HTTP basics that other servers share are in
windlass.http. Start at `app`.
"""
