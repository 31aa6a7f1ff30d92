// Package guardrails follows the Guardrails object: it sets the limits on all policies together
// in the core, keeps treatments from disturbing the work of others, reports in the status how far they are used, and keeps in the ledger what the
// next leader needs to know about the pace.
package guardrails
