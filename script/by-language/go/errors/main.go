// What Go's libraries return. A row for each fault: what a handler has that knows no library.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
)

var ports map[string]int

func row(library, fault string, status int, err error) {
	if err == nil {
		panic(library + ", " + fault + ": no error")
	}
	var code string
	var sqlstate interface{ SQLState() string }
	if errors.As(err, &sqlstate) {
		code = sqlstate.SQLState()
	}
	var shown any = ""
	if status != 0 {
		shown = status
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{
		"library": library, "fault": fault, "type": fmt.Sprintf("%T", err), "code": code, "http_status": shown, "message": err.Error(),
	})
}

func get(url string, client *http.Client) (int, error) {
	response, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode >= 400 {
		// net/http has no error for a status: this is the handler's own.
		return response.StatusCode, fmt.Errorf("unexpected status: %s", response.Status)
	}
	return 0, nil
}

func overHTTP() {
	client := &http.Client{Timeout: 300 * time.Millisecond}
	from := func(fault, url string) {
		status, err := get(url, client)
		row("net/http", fault, status, err)
	}
	at := func(name string) string { return fmt.Sprintf("http://127.0.0.1:%d/200", ports[name]) }
	from("refused", at("refused"))
	from("reset", at("reset"))
	from("DNS", "http://nowhere.invalid/")
	from("TLS", fmt.Sprintf("https://127.0.0.1:%d/200", ports["tls"]))
	from("timeout", at("silent"))
	within, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	request, _ := http.NewRequestWithContext(within, http.MethodGet, at("silent"), nil)
	_, err := http.DefaultClient.Do(request)
	row("net/http", "timeout, context", 0, err)
	for _, status := range []int{404, 422, 429, 500, 503} {
		fault := fmt.Sprint(status)
		if status == 422 {
			fault = "validation"
		}
		from(fault, fmt.Sprintf("http://127.0.0.1:%d/%d", ports["http"], status))
	}
}

// Each has one row and waits for the other's. One of the two gets the error.
func deadlock(db *sql.DB) error {
	for _, statement := range []string{
		"drop table if exists pair", "create table pair as select generate_series(1, 2) as id, 0 as n",
	} {
		if _, err := db.Exec(statement); err != nil {
			return err
		}
	}
	var both, ended sync.WaitGroup
	both.Add(2)
	found := make(chan error, 2)
	for _, ids := range [][2]int{{1, 2}, {2, 1}} {
		ended.Go(func() {
			tx, err := db.Begin()
			if err != nil {
				panic(err)
			}
			defer tx.Rollback()
			if _, err = tx.Exec("update pair set n = 1 where id = $1", ids[0]); err != nil {
				panic(err)
			}
			both.Done()
			both.Wait()
			if _, err = tx.Exec("update pair set n = 1 where id = $1", ids[1]); err != nil {
				found <- err
			}
		})
	}
	ended.Wait()
	return <-found
}

func overSQL(driver string) {
	library := "database/sql, " + map[string]string{"pgx": "pgx", "postgres": "lib/pq"}[driver]
	open := func(host, name, options string) *sql.DB {
		source := fmt.Sprintf("postgres://postgres@%s:%d/postgres?connect_timeout=1&%s", host, ports[name], options)
		db, err := sql.Open(driver, source)
		if err != nil {
			panic(err)
		}
		return db
	}
	const local, plain = "127.0.0.1", "sslmode=disable"
	execute := func(statement, options string) error {
		db := open(local, "postgres", plain+options)
		defer db.Close()
		_, err := db.Exec(statement)
		return err
	}
	row(library, "refused", 0, open(local, "refused", plain).Ping())
	row(library, "reset", 0, open(local, "reset", plain).Ping())
	row(library, "DNS", 0, open("nowhere.invalid", "postgres", plain).Ping())
	row(library, "TLS", 0, open(local, "postgres", "sslmode=verify-full").Ping())
	row(library, "timeout", 0, open(local, "silent", plain).Ping())
	within, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := open(local, "postgres", plain).ExecContext(within, "select pg_sleep(9)")
	row(library, "timeout, context", 0, err)
	row(library, "timeout of a statement", 0, execute("select pg_sleep(9)", "&statement_timeout=100"))
	row(library, "shutdown", 0, execute("select pg_terminate_backend(pg_backend_pid())", ""))
	var n int
	row(library, "no rows", 0, open(local, "postgres", plain).QueryRow("select 1 where false").Scan(&n))
	row(library, "deadlock", 0, deadlock(open(local, "postgres", plain)))
	row(library, "validation", 0, execute("do $$ begin create temp table t (n int not null); insert into t values (null); end $$", ""))
}

func main() {
	if err := json.Unmarshal([]byte(os.Getenv("PORTS")), &ports); err != nil {
		panic(err)
	}
	versions := "Go " + strings.TrimPrefix(runtime.Version(), "go")
	build, _ := debug.ReadBuildInfo()
	for _, module := range build.Deps {
		if strings.HasSuffix(module.Path, "/pgx/v5") || strings.HasSuffix(module.Path, "lib/pq") {
			name := strings.TrimSuffix(strings.TrimPrefix(module.Path, "github.com/"), "/v5")
			versions += ", " + strings.TrimPrefix(name, "jackc/") + " " + strings.TrimPrefix(module.Version, "v")
		}
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]string{"versions": versions})
	overHTTP()
	overSQL("pgx")
	overSQL("postgres")
}
