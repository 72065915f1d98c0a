/*
 * The protocol of a lease: one key, its row on the server, CLIENTS clients, and links that lose and delay.
 * index.md says what is left out, and what follows from it; tests/model/run.py runs it.
 *
 * Time is in ticks. No clock is in the state: whatever has an end counts down the ticks that are left to it, the
 * server's and the clients' alike (equal rates). A tick comes at any moment at which no client that runs owes
 * something: `in_time` says what is owed.
 *
 * `tenures`, `opens`, `ended`, `top` and every `serial` are the model's own bookkeeping, by which it judges; no client
 * and no statement looks at them.
 */

/* Bounds. Two clients have two connections each: one for what they wait for, one for what goes on without them. */
#define CLIENTS 2
#define LINKS 2
#ifndef TENURES
#define TENURES 3      /* changes of hands; after that every claim is refused */
#endif
#ifndef AT_ONCE
#define AT_ONCE 2      /* statements under way, of all clients */
#endif
#define TTL 3
#define GRACE 1
#define REST 2         /* ticks for which a released key is kept shut, if it is */

/* The properties. A run with ONLY set checks that one alone. */
#define ONE_TENURE 1
#define FENCES 2
#define BODIES 3
#define WRITES 4
#define OWN 5
#define REOPENS 6
#define GUARDED 7
#ifndef ONLY
#define ONLY 0
#endif
#define judged(property) (ONLY == 0 || ONLY == property)

bool one_tenure_at_a_time = true;
bool fences_rise = true;
bool bodies_apart = true;
bool writes_in_order = true;
bool own_tenure_alone = true;
bool key_opens_in_time = true;
bool guarded_write_is_the_latest = true;

/* The server: the row, the floor, and a resource elsewhere that is written with the fence. */
typedef Row {
    bool there;
    byte holder;
    byte fence;
    byte left;         /* ticks until expires_at; 0: run out */
    bool released      /* released_at is set */
};
Row row;
byte floor;
byte accepted;         /* the resource's last fence */
byte accepted_serial;

byte tenures;          /* how many there were: the serial of the latest */
byte opens;            /* ticks in which the latest has to be over unless it is renewed */
bool ended;            /* the latest was released */
byte top;              /* the greatest fence that there ever was */

/* A connection with the statement that is under way on it. */
mtype = { NOTHING, CLAIM, RENEW, RELEASE };
mtype = { SENT, LOOKED, ANSWERED };
typedef Link {
    mtype what;
    mtype stage;
    bool heard;        /* whether the client waits for the answer */
    byte holder;
    byte fence;        /* asked for, 0: any; in an answer: granted or renewed, 0: refused or lost */
    byte serial;
    byte left;         /* ticks of the ttl that are left, counted from the sending */
    bool joined
};
Link link[CLIENTS * LINKS];

mtype = { IDLE, CLAIMING, WORKING, STOPPING };
typedef Client {
    mtype does;
    byte holder;
    byte fence;
    byte serial;
    bool joined;
    byte trust;        /* ticks until trusted_until */
    byte unwinds;      /* ticks that the body has left to end in, once it was told */
    bool paused;
    byte excuse;       /* ticks left to a client that was paused past its deadline: nobody could tell its body before */
    byte wrote;        /* the fence of a write to the resource that is under way; 0: none */
    byte wrote_serial;
    byte guards        /* the serial of the tenure that its open transaction has checked; 0: none open */
};
Client client[CLIENTS];

#define has_body(c) (client[c].does == WORKING || client[c].does == STOPPING)
#define is_own_row(c) (row.there && row.holder == client[c].holder && row.fence == client[c].fence)
#define holds_row(c) (is_own_row(c) && row.left > 0 && !row.released)
#define is_past_deadline(c) (client[c].trust <= GRACE)
#define is_prompt(c) (has_body(c) && !client[c].paused && client[c].excuse == 0)

#define prompt_bodies (is_prompt(0) + is_prompt(1))
#define guarded (client[0].guards > 0 || client[1].guards > 0)
#define in_time (is_in_time(0) && is_in_time(1))

/* The rules, each with what breaks it. */

#ifdef FLOOR_PASSES_CLAIMS
#define is_looked_at (false)
#else
#define is_looked_at (link[0].stage == LOOKED || link[1].stage == LOOKED || link[2].stage == LOOKED || link[3].stage == LOOKED)
#endif

#ifdef NO_DEADLINE
#define has_to_stop(c) (false)
#elif defined(NO_GRACE)
#define has_to_stop(c) (client[c].does == WORKING && client[c].trust == 0)
#else
#define has_to_stop(c) (client[c].does == WORKING && is_past_deadline(c))
#endif

#define is_in_time(c) (client[c].paused || (!has_to_stop(c) && !(client[c].does == STOPPING && client[c].unwinds <= 1)))

#ifdef TRUST_FROM_REPLY
#define trust_of(l) TTL
#else
#define trust_of(l) link[l].left
#endif

#ifdef LATE_ANSWER_IS_A_LEASE
#define is_too_late(l) (false)
#else
#define is_too_late(l) (trust_of(l) <= GRACE)
#endif

#ifdef RENEW_BY_KEY
#define renewed_by(l) (row.there)
#elif defined(RENEW_WITHOUT_FENCE)
#define renewed_by(l) (row.there && row.holder == link[l].holder)
#else
#define renewed_by(l) (row.there && row.holder == link[l].holder && row.fence == link[l].fence)
#endif

#ifdef RENEW_PAST_EXPIRY
#define renewable (!row.released)
#elif defined(RENEW_RESTING)
#define renewable (row.left > 0)
#else
#define renewable (!row.released && row.left > 0)
#endif

#ifdef RELEASE_WITHOUT_FENCE
#define released_by(l) (row.there && row.holder == link[l].holder)
#else
#define released_by(l) (row.there && row.holder == link[l].holder && (link[l].fence == 0 || row.fence == link[l].fence))
#endif

#ifdef GUARD_LOCKS_NOTHING
#define is_kept_shut (false)
#else
#define is_kept_shut guarded
#endif

#ifdef CLAIM_OF_WHAT_IS_HELD
#define claimable (!is_kept_shut)
#else
#define claimable (row.left == 0 && !is_kept_shut)
#endif

#ifdef PRUNE_WITHOUT_FLOOR
#define prunable (row.left == 0 && !is_kept_shut)
#elif defined(PRUNE_GUARDED)
#define prunable (row.left == 0 && row.fence <= floor)
#else
#define prunable (row.left == 0 && row.fence <= floor && !is_kept_shut)
#endif

#ifdef UNFENCED_RESOURCE
#define acceptable(fence_) (true)
#else
#define acceptable(fence_) (fence_ >= accepted)
#endif

/* What the model judges by. */

inline judge_bodies() {
    bodies_apart = !judged(BODIES) || prompt_bodies <= 1;
    assert(bodies_apart)
}

inline judge_row() {
    key_opens_in_time = !judged(REOPENS) || !row.there || row.left <= opens;
    assert(key_opens_in_time)
}

inline judge_touch(l) {
    own_tenure_alone = !judged(OWN) || (link[l].serial == tenures && opens > 0 && !ended);
    assert(own_tenure_alone)
}

inline begin_tenure(l, fence_) {
    one_tenure_at_a_time = !judged(ONE_TENURE) || opens == 0;
    assert(one_tenure_at_a_time);
    fences_rise = !judged(FENCES) || fence_ > top;
    assert(fences_rise);
    tenures++;
    opens = TTL;
    ended = false;
    row.there = true;
    row.holder = link[l].holder;
    row.fence = fence_;
    top = (row.fence > top -> row.fence : top);
    row.left = TTL;
    row.released = false;
    link[l].serial = tenures;
    link[l].fence = row.fence;
    if
    :: link[l].heard -> client[l / LINKS].serial = tenures
    :: else
    fi
}

/* Links. */

inline clear(l) {
    link[l].what = NOTHING;
    link[l].stage = SENT;
    link[l].heard = false;
    link[l].holder = 0;
    link[l].fence = 0;
    link[l].serial = 0;
    link[l].left = 0;
    link[l].joined = false
}

inline send(l, what_, heard_, holder_, fence_, serial_) {
    link[l].what = what_;
    link[l].stage = SENT;
    link[l].heard = heard_;
    link[l].holder = holder_;
    link[l].fence = fence_;
    link[l].serial = serial_;
    link[l].left = (heard_ -> TTL : 0);
    link[l].joined = false
}

inline answer(l) {
    if
    :: link[l].heard -> link[l].stage = ANSWERED
    :: else ->
        if
        :: link[l].what == CLAIM && link[l].fence > 0 && !link[l].joined ->
            /* Nobody waits for it: given back, on the same connection. */
            send(l, RELEASE, false, link[l].holder, link[l].fence, link[l].serial)
        :: else -> clear(l)
        fi
    fi
}

inline refuse(l) {
    link[l].fence = 0;
    answer(l)
}

inline delete_row() {
    row.there = false;
    row.holder = 0;
    row.fence = 0;
    row.left = 0;
    row.released = false
}

/* The claim of a key that has a row: joined, taken over, or refused. */
inline claim_row(l) {
    if
#ifdef JOINS
    :: row.left > 0 && !row.released && row.holder == link[l].holder ->
        printf("server: holder %d joins its tenure, fence %d\n", link[l].holder, row.fence);
        row.left = TTL;
        opens = TTL;
        link[l].fence = row.fence;
        link[l].serial = tenures;
        link[l].joined = true;
        answer(l)
#endif
    :: claimable && tenures < TENURES ->
#ifdef TAKE_OVER_KEEPS_FENCE
        begin_tenure(l, row.fence);
#else
        begin_tenure(l, row.fence + 1);
#endif
        printf("server: holder %d has the key, fence %d\n", row.holder, row.fence);
        answer(l)
    :: else ->
        printf("server: holder %d is refused\n", link[l].holder);
        refuse(l)
    fi
}

/* Released, and kept shut for a while where there is a min_hold. */
inline carry_out_release(l, rest) {
    if
    :: released_by(l) && !row.released && row.left > 0 ->
        printf("server: holder %d is released\n", row.holder);
        judge_touch(l);
        opens = rest;
        ended = true;
#ifdef RELEASE_DELETES
        delete_row();
#else
        row.left = rest;
        row.released = true;
#endif
        judge_row()
    :: else
    fi;
    clear(l)
}

/* A connection: carries out its statement at any time, or loses it, or its answer. */
proctype Connection(byte l) {
    do
    :: d_step { link[l].what == CLAIM && link[l].stage == SENT && row.there -> claim_row(l) }
    :: d_step { link[l].what == CLAIM && link[l].stage == SENT && !row.there ->
        /* Sees nothing, and reads the floor under a lock, which it keeps until it has inserted. */
        printf("server: holder %d sees no row\n", link[l].holder);
        link[l].stage = LOOKED;
        link[l].fence = floor }
    :: d_step { link[l].stage == LOOKED ->
        if
        :: !row.there && tenures < TENURES ->
            begin_tenure(l, link[l].fence + 1);
            printf("server: holder %d has the new key, fence %d\n", row.holder, row.fence);
            answer(l)
        :: else -> refuse(l)
        fi }
    :: d_step { link[l].what == RENEW && link[l].stage == SENT ->
        if
        :: renewed_by(l) && renewable ->
            printf("server: the renewal of holder %d, fence %d, is done\n", link[l].holder, link[l].fence);
            judge_touch(l);
            row.left = TTL;
            opens = (opens > 0 && !ended -> TTL : opens);
            judge_row();
            answer(l)
        :: else ->
            printf("server: the tenure of holder %d, fence %d, is over\n", link[l].holder, link[l].fence);
            refuse(l)
        fi }
    :: d_step { link[l].what == RELEASE -> carry_out_release(l, 0) }
    :: d_step { link[l].what == RELEASE -> carry_out_release(l, REST) }
    :: d_step { link[l].what != NOTHING ->
        printf("link %d loses its statement, or the answer\n", l);
        clear(l) }
    od
}

/* Clients. */

#define free_link(c) (link[(c) * LINKS].what == NOTHING -> (c) * LINKS : (c) * LINKS + 1)
#define under_way ((link[0].what != NOTHING) + (link[1].what != NOTHING) + (link[2].what != NOTHING) + (link[3].what != NOTHING))
#define has_free_link(c) (link[free_link(c)].what == NOTHING && under_way < AT_ONCE)
#define heard_link(c) (link[(c) * LINKS].heard -> (c) * LINKS : (c) * LINKS + 1)
#define awaits(c) (link[heard_link(c)].heard)
#define is_answered(c, what_) (link[heard_link(c)].what == what_ && link[heard_link(c)].stage == ANSWERED && awaits(c))

/* A holder that nothing else of this client's bears, as every acquisition has; or always the same, as with `holder=`. */
#define first_name(c) ((c) * 4 + 1)
#define bears(c, name) (row.holder == name || link[(c) * LINKS].holder == name || link[(c) * LINKS + 1].holder == name)
#if defined(NAMED) || defined(JOINS) || defined(HOLDER_REUSED)
#define fresh_holder(c) first_name(c)
#else
#define fresh_holder(c) (!bears(c, first_name(c)) -> first_name(c) : \
    (!bears(c, first_name(c) + 1) -> first_name(c) + 1 : \
    (!bears(c, first_name(c) + 2) -> first_name(c) + 2 : first_name(c) + 3)))
#endif

/* Nobody waits any more for what is under way: it goes on by itself. An answer that is there already is thrown away. */
inline give_up(c) {
    if
    :: awaits(c) ->
        l = heard_link(c);
        link[l].heard = false;
        link[l].left = 0;
        if
        :: link[l].stage == ANSWERED -> answer(l)
        :: else
        fi
    :: else
    fi
}

inline forget(c) {
    client[c].does = IDLE;
    client[c].holder = 0;
    client[c].fence = 0;
    client[c].serial = 0;
    client[c].joined = false;
    client[c].trust = 0;
    client[c].unwinds = 0;
    client[c].paused = false;
    client[c].excuse = 0
}

inline release(c, fence_) {
    if
    :: !client[c].joined && has_free_link(c) ->
        l = free_link(c);
        send(l, RELEASE, false, client[c].holder, fence_, client[c].serial)
    :: else
    fi
}

proctype Contender(byte c) {
    byte l;
    do
    :: d_step { client[c].does == IDLE && has_free_link(c) && tenures < TENURES ->
        printf("client %d claims\n", c);
        client[c].does = CLAIMING;
        client[c].holder = fresh_holder(c);
        l = free_link(c);
        send(l, CLAIM, true, client[c].holder, 0, 0);
        l = 0 }
    :: d_step { client[c].does == CLAIMING && is_answered(c, CLAIM) ->
        l = heard_link(c);
        if
        :: link[l].fence == 0 -> forget(c)
        :: link[l].fence > 0 && is_too_late(l) ->
            printf("client %d gives a late answer back\n", c);
            give_up(c);
            forget(c)
        :: else ->
            printf("client %d works, fence %d\n", c, link[l].fence);
            client[c].does = WORKING;
            client[c].fence = link[l].fence;
            client[c].serial = link[l].serial;
            client[c].joined = link[l].joined;
            client[c].trust = trust_of(l);
            judge_bodies()
        fi;
        if
        :: link[l].heard -> clear(l)
        :: else
        fi;
        l = 0 }
    :: d_step { client[c].does == CLAIMING ->
        printf("client %d gives its claim up\n", c);
        if
        :: awaits(c) -> give_up(c)
        :: else ->
            /* Its link was lost, and with it the fence: given back by the holder alone, if nobody shares that. */
#if !defined(NAMED) && !defined(JOINS)
            release(c, 0)
#endif
        fi;
        forget(c);
        l = 0 }
    :: d_step { client[c].does == WORKING && !client[c].paused && !is_past_deadline(c) && has_free_link(c) && !awaits(c) ->
        printf("client %d renews\n", c);
        l = free_link(c);
        send(l, RENEW, true, client[c].holder, client[c].fence, client[c].serial);
        l = 0 }
    :: d_step { client[c].does == WORKING && !client[c].paused && is_answered(c, RENEW) ->
        l = heard_link(c);
        if
        :: link[l].fence == 0 ->
            printf("client %d is told that its tenure is over\n", c);
            client[c].does = STOPPING;
            client[c].unwinds = GRACE
        :: else ->
            client[c].trust = (trust_of(l) > client[c].trust -> trust_of(l) : client[c].trust)
        fi;
        clear(l);
        l = 0 }
    :: d_step { client[c].does == WORKING && !client[c].paused && awaits(c) ->
        /* Out of patience. */
        give_up(c);
        l = 0 }
    :: d_step { !client[c].paused && has_to_stop(c) ->
        printf("client %d has to stop\n", c);
        give_up(c);
        client[c].does = STOPPING;
        client[c].unwinds = GRACE;
        l = 0 }
    :: d_step { client[c].does == STOPPING && !client[c].paused ->
        printf("the body of client %d has ended\n", c);
        forget(c) }
    :: d_step { client[c].does == WORKING && !client[c].paused && !is_past_deadline(c) ->
        printf("client %d releases\n", c);
        give_up(c);
        release(c, client[c].fence);
#ifdef RELEASE_BEFORE_END
        client[c].does = STOPPING;
        client[c].unwinds = GRACE;
#else
        forget(c);
#endif
        l = 0 }
    :: d_step { has_body(c) && !client[c].paused ->
        printf("client %d is paused\n", c);
        client[c].paused = true }
    :: d_step { client[c].paused ->
        printf("client %d goes on\n", c);
        client[c].paused = false;
        client[c].excuse = (has_body(c) && is_past_deadline(c) -> GRACE : client[c].excuse);
        judge_bodies() }
    :: d_step { client[c].does != IDLE ->
        printf("client %d crashes\n", c);
        give_up(c);
        forget(c);
        l = 0 }
#ifdef WRITING
    :: d_step { has_body(c) && !client[c].paused && client[c].wrote == 0 ->
        printf("client %d writes with fence %d\n", c, client[c].fence);
        client[c].wrote = client[c].fence;
        client[c].wrote_serial = client[c].serial }
    :: d_step { client[c].wrote > 0 ->
        /* The write comes to the resource, at any time. */
        if
        :: acceptable(client[c].wrote) ->
            printf("resource: accepts fence %d of client %d\n", client[c].wrote, c);
            writes_in_order = !judged(WRITES) || client[c].wrote_serial >= accepted_serial;
            assert(writes_in_order);
            accepted = client[c].wrote;
            accepted_serial = client[c].wrote_serial
        :: else
        fi;
        client[c].wrote = 0;
        client[c].wrote_serial = 0 }
#endif
#ifdef GUARDING
    :: d_step { has_body(c) && !client[c].paused && client[c].guards == 0 && holds_row(c) ->
        printf("client %d opens a guarded transaction, fence %d\n", c, client[c].fence);
        client[c].guards = client[c].serial }
    :: d_step { client[c].guards > 0 ->
        printf("the guarded transaction of client %d commits\n", c);
        guarded_write_is_the_latest = !judged(GUARDED) || client[c].guards == tenures;
        assert(guarded_write_is_the_latest);
        client[c].guards = 0 }
    :: d_step { client[c].guards > 0 ->
        printf("the guarded transaction of client %d is ended by the server\n", c);
        client[c].guards = 0 }
#endif
    od
}

/* Time. */

#define count_down(what) what = (what > 0 -> what - 1 : 0)

proctype Clock() {
    byte i;
    do
    :: d_step { in_time ->
        printf("tick\n");
        count_down(row.left);
        count_down(opens);
        for (i : 0 .. CLIENTS * LINKS - 1) { count_down(link[i].left) }
        for (i : 0 .. CLIENTS - 1) {
            count_down(client[i].trust);
            if
            :: !client[i].paused -> count_down(client[i].unwinds); count_down(client[i].excuse)
            :: else
            fi
        }
        i = 0;
        judge_bodies();
        judge_row() }
    od
}

#ifdef PRUNING
/* Two statements, each committed before the next: the floor first. */
proctype Prune() {
    do
    :: d_step { row.there && row.left == 0 && floor < row.fence && !is_looked_at ->
        printf("prune: the floor is raised to %d\n", row.fence);
        floor = row.fence }
    :: d_step { row.there && prunable ->
        printf("prune: the row is deleted\n");
        delete_row() }
    od
}
#endif

init {
    byte i;
    atomic {
        run Clock();
#ifdef PRUNING
        run Prune();
#endif
        for (i : 0 .. CLIENTS - 1) {
            forget(i);
            run Contender(i)
        }
        for (i : 0 .. CLIENTS * LINKS - 1) {
            clear(i);
            run Connection(i)
        }
        i = 0
    }
}
