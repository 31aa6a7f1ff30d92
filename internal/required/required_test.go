package required

import "testing"

func TestCheckNamesAllMissingFields(t *testing.T) {
	if err := (Fields{"Client": false}).Check(); err != nil {
		t.Errorf("nothing is missing, but: %v", err)
	}
	err := Fields{"Logger": true, "Client": false, "Event": true}.Check()
	if want := "Event is missing\nLogger is missing"; err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}
