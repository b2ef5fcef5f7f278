"""Commands about models and services.

`models` (`models_import`, `models_near`), `chat` (`chat_session`), `serve` (`first_key`), `rollout`, `keys`,
`limits`, `tenants` and `audit_log`; `state_argument` has the options that name a service's database.
"""
