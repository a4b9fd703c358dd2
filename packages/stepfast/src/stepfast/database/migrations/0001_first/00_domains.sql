-- Types of columns that refuse what no code of ours writes. Elsewhere each such column has a CHECK: see `column_types.py`.
-- only: postgresql
{domain:instant};

-- only: postgresql
{domain:counter};

-- only: postgresql
{domain:total};

-- only: postgresql
{domain:skew};

-- only: postgresql
{domain:flag};

-- only: postgresql
{domain:percentage};

-- only: postgresql
{domain:job_state};

-- only: postgresql
{domain:ended_state};

-- only: postgresql
{domain:worker_state};

-- only: postgresql
{domain:bond};

-- only: postgresql
{domain:on_dead};

-- only: postgresql
{domain:edge_state};

-- only: postgresql
{domain:missed};

-- only: postgresql
{domain:overlap};

-- only: postgresql
{domain:message_state};

-- only: postgresql
{domain:run_kind};

-- only: postgresql
{domain:run_state};

-- only: postgresql
{domain:partition_state};

-- only: postgresql
{domain:quarantine_state};

-- only: postgresql
{domain:debt_state};

-- only: postgresql
{domain:queued_state};
