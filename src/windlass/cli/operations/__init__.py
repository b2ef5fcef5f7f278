"""Commands about clusters, sites and backups: `kubernetes`, `cluster`, `control`, `sites` (`sites_replicate`,
`sites_rollout`, `sites_argument`), `backup` (`backup_argument`) and `restore`.
"""
