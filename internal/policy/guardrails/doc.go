// Package guardrails follows the Guardrails object: it sets the limits on all policies together
// in the core, reports in the status how far they are used, and keeps in the ledger what the
// next leader needs to know about the pace.
package guardrails
