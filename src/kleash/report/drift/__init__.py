"""How an audit of drift is shown: terminal, page, model card, badge, all from `kleash.drift.records.Audit` alone."""
