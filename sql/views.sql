-- What a person looks at. Views run as the caller, like the functions.

CREATE OR REPLACE VIEW drift.models WITH (security_invoker = true) AS
SELECT m.name, m.dimensions, m.normalized,
       (SELECT count(*) FROM drift.embedding_column c WHERE c.model = m.name) AS columns,
       (SELECT count(*) FROM drift.adapter a WHERE m.name IN (a.source, a.target)) AS adapters,
       m.created_at
FROM drift.model m
ORDER BY m.created_at, m.name;
COMMENT ON VIEW drift.models IS 'Registered embedding models and how much depends on each';

CREATE OR REPLACE VIEW drift.adapters WITH (security_invoker = true) AS
SELECT a.id, a.source, a.target, a.status, a.family,
       s.dimensions AS source_dimensions, t.dimensions AS target_dimensions,
       l.layers, l.parameters,
       (a.details ->> 'pairs')::integer AS pairs,
       encode(a.checksum, 'hex') AS checksum, a.created_at, a.created_by, a.activated_at,
       e.score, e.score_low, e.advice
FROM drift.adapter a
JOIN drift.model s ON s.name = a.source
JOIN drift.model t ON t.name = a.target
CROSS JOIN LATERAL (
    SELECT count(*) AS layers, sum(l.outputs * (l.inputs + 1)) AS parameters
    FROM drift.adapter_layer l WHERE l.adapter_id = a.id) l
LEFT JOIN LATERAL drift.latest_evaluation(a.id) e ON true
ORDER BY a.id;
COMMENT ON VIEW drift.adapters IS 'Stored adapters: between which models, with which status, and what the latest evaluation says';

CREATE OR REPLACE VIEW drift.columns WITH (security_invoker = true) AS
SELECT c.relation, c.column_name, c.model, m.dimensions, c.metric, c.index_cast,
       (SELECT count(*) FROM drift.vector_indexes(c.relation, c.column_name) v
        WHERE v.metric = c.metric AND v.index_cast IS NOT DISTINCT FROM c.index_cast) AS indexes,
       drift.column_problem(c.relation, c.column_name, m.dimensions) AS problem,
       c.query_model
FROM drift.embedding_column c
JOIN drift.model m ON m.name = c.model
ORDER BY c.relation::text, c.column_name;
COMMENT ON VIEW drift.columns IS 'Embedding columns, the indexes that serve them, and what is wrong with a column, if anything';

CREATE OR REPLACE VIEW drift.status WITH (security_invoker = true) AS
SELECT c.relation, c.column_name, c.model,
       (SELECT array_agg(a.source ORDER BY a.source) FROM drift.adapter a
        WHERE a.target = c.model AND a.status = 'active') AS also_serves,
       coalesce(c.problem,
                CASE WHEN c.query_model IS NOT NULL AND NOT EXISTS (
                         SELECT FROM drift.adapter a WHERE a.source = c.query_model AND a.target = c.model AND a.status = 'active')
                     THEN format('its queries come from model %L, and no adapter from it to model %L is active', c.query_model, c.model)
                     WHEN c.indexes = 0 THEN format('no index serves metric %s: searches read the whole table', c.metric) END) AS problem,
       c.query_model
FROM drift.columns c;
COMMENT ON VIEW drift.status IS 'Per embedding column: its model, the models whose queries active adapters map into it, and what is wrong';
