// Package dialect compiles the policies of users into rules for package triage: condition
// sets, node health checks, repair policies and the ready timeout. Guardrails, which limit all
// of them, become [Rails].
//
// A compiled rule is valid and has all defaults. The error for an invalid policy is a
// *[triage.FieldError] with the path of the field, as the user spells it, and its value. All
// fields are text: the caller reads objects, files and environment variables. The names of time
// zones come from the system, or from package time/tzdata if the program contains it.
package dialect
