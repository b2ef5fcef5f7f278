"""The service's database: tables that gateways, the supervisor and the commands share.

    `state`               opens the database with all tables; each of the other modules owns some of them
    `keys`                API keys: who may use the service
    `tenants`             tenants, with limits and settings of their own
    `naming`              which names keys and tenants may have
    `audit_log`           who did what: an append-only chain of hashed records
    `audit_verify`        checks that chain, and deletes old records from it
    `quotas`              what is left of each quota, and what gateways have on lease
    `bucket`              the rules of quotas and leases, pure
    `idempotency_store`   answers kept for repeated requests
    `redaction`           removes personal data and keys from texts
    `rollouts`            roll-outs of model versions
    `golden_answers`      the known answers of model versions, for probes
    `record_cache`        caches rows that every request looks up, until the database changes

Start at `state`, then `keys`.
"""
